"""Training on one device or many: `python -m trainer.run`. Importing the package costs nothing.

The flow: config -> plan -> cluster -> models -> step -> loop -> actions; `training` composes them.
"""
