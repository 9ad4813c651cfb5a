"""The conversion step by step: flags, source, plan, target, Beam job, publication, report."""
