"""What tests share, one module for each subject. What one file or folder alone uses stands there.

Data sets and sources:

- `datasets`: a data set written without a converter: shards, sidecars, manifest; its images and keys by number.
- `validated`: a small data set of each kind, and damage with a manifest that fits it again.
- `foreign`: TFRecords of images as other projects write them.
- `annotated`: images with boxes and masks in the layouts of COCO and PASCAL VOC.
- `made_source`: a source of `beam_jobs` whose rows a test makes.
- `converting`: a conversion without Beam in this process; a program in which a conversion is killed.
- `round_trips`: tables in a source's files, and the check of the data set that a conversion makes of them.

Processes:

- `forked`: a command as a real process, forked from a server that has loaded TensorFlow and Beam (`preload`); ports.
- `runs`: a training run or several workers as processes; their log lines, checkpoints and scalars.
- `parameter_servers`: a job with parameter servers as processes.
- `launches`: the launcher as a process, with the trainer or a stand-in for it (`fake_trainer`).
- `slurm`: Slurm's commands as stubs.
- `displays`: a terminal to show progress on, and time that passes for it.

Checks and the tests themselves:

- `raised`: checks of an error's fields.
- `manifests`: Kubernetes manifests against the published models, and how a pod interprets them.
- `snapshots`: snapshots as plain text, one file per case.
- `augmenting_tasks`: tasks that augment images by functions of their own.
- `lanes`: which examples and cases are in `make test`, and which in `make test-slow`.
- `processor_time`: the plugin that prints the tests that cost most.
"""
