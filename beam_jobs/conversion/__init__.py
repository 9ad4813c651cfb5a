"""The conversion step by step: flags, source, plan, sink, Beam job, publication, report."""
