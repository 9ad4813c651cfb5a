"""All TensorFlow names we use that are not public, and that a new release may move without notice."""

from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
