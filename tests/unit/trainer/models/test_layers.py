"""Layers with Keras' numbers in another form: one kernel of a normalisation, a pooling that XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import trainer
from pipeline.errors import UsageError
from trainer import models
from trainer.config.model import MODELS, ModelFlags
from trainer.models import layers

SHAPE = (3, 2, 2, 5)  # 12 rows and pixels: their variance is 11 / 12 of the population's
KERNELS = {"FusedBatchNormV3", "FusedBatchNormGradV3"}
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def operations_of(function, *arguments):
    """Returns the names of the operations of a compiled function."""
    return {node.op for node in function.get_concrete_function(*arguments).graph.as_graph_def().node}


def normalised(kind, inputs, training=True, mask=None, jit_compile=False, frozen=False, **options):
    """Returns outputs, gradients and new statistics of a layer, in float64, and the operations of its graph."""
    layer = kind(momentum=0.75, **options)
    layer.build(inputs.shape)
    for number, variable in enumerate(layer.trainable_variables):
        variable.assign(np.linspace(0.5 - number, 2.0, inputs.shape[layer.axis]))
    layer.trainable = not frozen
    inputs = tf.constant(inputs, layer.compute_dtype)
    factors = tf.constant(np.random.default_rng(1).normal(size=inputs.shape), tf.float32)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compute(inputs):
        sources = [inputs, *(variable.value for variable in layer.trainable_variables)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=training, mask=mask)
            total = tf.reduce_sum(tf.cast(outputs, tf.float32) * factors)
        return [outputs, *tape.gradient(total, sources)]

    found = compute(inputs)
    assert found[0].dtype == found[1].dtype == inputs.dtype
    numbers = [np.float64(one) for one in (*found, layer.moving_mean, layer.moving_variance)]
    return numbers, operations_of(compute, inputs)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"scale": False, "center": False}, {"axis": 3}])
@pytest.mark.quick(3)
def test_one_kernel_has_the_numbers_of_keras(options, policy):
    inputs = np.random.default_rng(0).normal(3, 2, SHAPE).astype(np.float32)
    expected, plain = normalised(keras.layers.BatchNormalization, inputs, dtype=policy, **options)
    found, fused = normalised(layers.BatchNormalization, inputs, dtype=policy, **options)
    assert (fused & KERNELS, plain & KERNELS) == (KERNELS, set())
    low = {"float32": 1e-5, "mixed_bfloat16": 2**-7, "mixed_float16": 2**-10}[policy]  # of outputs and their gradients
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        tolerance = low if number < 2 else 1e-5  # parameters and statistics are float32
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_the_statistics_of_bfloat16_are_float32_and_of_the_batch():
    """In bfloat16 the mean of such inputs would be off by 1, and the variance of the population by a ninth."""
    inputs = np.float32(tf.cast(np.random.default_rng(0).normal(300, 20, (1, 3, 3, 4)), tf.bfloat16))
    (*_, mean, variance), _ = normalised(layers.BatchNormalization, inputs, dtype="mixed_bfloat16")
    np.testing.assert_allclose(mean, 0.25 * inputs.mean(axis=(0, 1, 2), dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(variance, 0.75 + 0.25 * inputs.var(axis=(0, 1, 2), dtype=np.float64), rtol=1e-5)


def test_a_single_value_has_no_variance():
    (*_, variance), operations = normalised(layers.BatchNormalization, np.ones((1, 1, 1, 2), np.float32))
    assert operations >= KERNELS
    np.testing.assert_array_equal(variance, [0.75, 0.75])


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((6, 5), {}),
        (SHAPE, {"axis": 1}),
        (SHAPE, {"renorm": True}),
        (SHAPE, {"synchronized": True}),
        (SHAPE, {"dtype": "float64"}),
        (SHAPE, {"mask": np.array([[[True, False]] * 2] * 3)}),
        (SHAPE, {"training": False}),
        (SHAPE, {"frozen": True}),
        (SHAPE, {"jit_compile": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@pytest.mark.quick(3)
def test_everything_else_is_computed_by_keras_to_the_bit(shape, options):
    inputs = np.random.default_rng(0).normal(3, 2, shape).astype(np.float32)
    (expected, _), (found, operations) = (
        normalised(kind, inputs, **options) for kind in (keras.layers.BatchNormalization, layers.BatchNormalization)
    )
    assert not operations & KERNELS
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def pooled(function, inputs, jit_compile=False):
    """Returns the result of a function of images, and the gradient of a weighted sum of it.

    The weights are whole numbers, so that a gradient of several windows has the same bits in any order of summation:
    TensorFlow's own kernels, Eigen's and oneDNN's, differ in it.
    """
    weigh = tf.constant(np.random.default_rng(3).integers(-9, 10, function(inputs).shape), inputs.dtype)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
            total = tf.reduce_sum(outputs * weigh)
        return outputs, tape.gradient(total, inputs)

    return [one.numpy() for one in compute()]


@pytest.mark.parametrize(
    ("size", "strides", "padding", "dtype"),
    [
        (2, 2, "valid", "float32"),
        (3, 2, "same", "float32"),
        (3, 2, "same", "bfloat16"),
        (3, 2, "valid", "float32"),
        (2, 3, "same", "float32"),
        (3, 1, "same", "float32"),
        ((3, 2), (1, 2), "same", "float32"),
    ],
)
@pytest.mark.quick(3)
def test_shifted_maxima_have_the_bits_of_tensorflows_kernel(size, strides, padding, dtype):
    """Among rounded numbers many are equal, and the zeros that ReLU leaves are, too."""
    values = np.round(np.random.default_rng(0).normal(size=(4, 9, 11, 4)), 1)
    inputs = tf.constant(np.concatenate([values, np.maximum(values, 0)]), dtype)
    layer = keras.layers.MaxPooling2D(size, strides, padding, dtype=dtype)
    expected = pooled(layer, inputs)
    found = pooled(
        lambda images: layers.shifted_maxima(images, layer.pool_size, layer.strides, padding), inputs, jit_compile=True
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_xla_compiles_our_pooling_under_op_determinism(op_determinism):
    inputs = tf.constant(np.random.default_rng(0).normal(size=(2, 7, 7, 2)), tf.float32)
    ours, theirs = (kind(3, 2, "same") for kind in (layers.MaxPooling2D, keras.layers.MaxPooling2D))
    expected = pooled(theirs, inputs)
    with pytest.raises(tf.errors.UnimplementedError, match="deterministic"):
        pooled(theirs, inputs, jit_compile=True)
    for jit_compile in (True, False):
        for one, other in zip(pooled(ours, inputs, jit_compile), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_max_pooling_is_tensorflows_kernel_outside_xla():
    layer = layers.MaxPooling2D()
    operations = operations_of(tf.function(layer), tf.TensorSpec((1, 4, 4, 1)))
    assert "MaxPool" in operations
    assert "Maximum" not in operations


def image_layers():
    return [
        keras.layers.Conv2D(4, 3, padding="same"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(),
    ]


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = image_layers()
        self.pooling, self.dense = keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)

    def call(self, images, training=None):
        for part in self.parts:
            images = part(images, training=training) if "normalization" in part.name else part(images)
        return self.dense(self.pooling(images))


def sequential():
    parts = [*image_layers(), keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((6, 6, 2)), *parts])


def nested():
    images = keras.Input((6, 6, 2))
    inner = keras.Sequential([keras.Input((6, 6, 2)), *image_layers()])
    found = keras.layers.BatchNormalization(trainable=False)(inner(images))
    return keras.Model(images, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling2D()(found)))


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 6, 6, 2), np.float32))
    return model


def ours_in(model):
    kinds = (layers.BatchNormalization, layers.MaxPooling2D)
    return [type(layer) for layer in model._flatten_layers() if isinstance(layer, kinds)]


def fitted(model):
    """Returns outputs in inference, after three steps by Keras' own `fit`, and the weights."""
    images = np.random.default_rng(2).normal(size=(24, 6, 6, 2)).astype(np.float32)
    model.fit(images, images[:, 0, :3, 0], batch_size=8, shuffle=False, verbose=0)
    return [model(images).numpy(), *model.get_weights()]


@pytest.mark.parametrize("build", [sequential, nested, subclassed])
@pytest.mark.quick(1)
def test_swapped_layers_keep_their_places_and_train_alike(build):
    model, swapped = (build() for _ in range(2))
    for number, pair in enumerate(zip(model.variables, swapped.variables, strict=True)):
        start = np.random.default_rng(number).uniform(0.1, 1, pair[0].shape)
        for variable in pair:
            variable.assign(start)
    for one in (model, swapped):
        one.compile("sgd", "mse", jit_compile=False)
    before = [(id(layer), layer.name, layer.trainable) for layer in swapped._flatten_layers()]
    assert trainer.fuse_layers(swapped) is swapped
    assert [(id(layer), layer.name, layer.trainable) for layer in swapped._flatten_layers()] == before
    assert set(ours_in(swapped)) == {layers.BatchNormalization, layers.MaxPooling2D}
    images = np.random.default_rng(1).normal(size=(4, 6, 6, 2)).astype(np.float32)
    np.testing.assert_array_equal(swapped(images), model(images))
    for one, other in zip(fitted(swapped), fitted(model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_function_that_keras_has_traced_is_made_again():
    model = sequential()
    model.compile("sgd", "mse", jit_compile=False)
    fitted(model)
    trainer.fuse_layers(model)
    assert model.train_function is None
    assert operations_of(tf.function(lambda images: gradient_of(model, images)), tf.zeros((2, 6, 6, 2))) >= KERNELS


def gradient_of(model, images):
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(images, training=True))
    return tape.gradient(total, [variable.value for variable in model.trainable_variables])


class OwnNormalization(keras.layers.BatchNormalization):
    pass


def test_what_cannot_be_swapped_is_named_with_its_reason():
    parts = [
        OwnNormalization(name="own"),
        keras.layers.BatchNormalization(axis=1, name="first"),
        keras.layers.BatchNormalization(renorm=True, name="renormed"),
        keras.layers.BatchNormalization(synchronized=True, name="shared"),
        keras.layers.MaxPooling2D(data_format="channels_first", name="pooling"),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(name="of_vectors"),  # of which nothing is expected
    ]
    model = keras.Sequential([keras.Input((4, 4, 2)), *parts])
    assert not layers.has_unfused(model)
    with pytest.warns(UserWarning, match="fuse_layers") as told:
        trainer.fuse_layers(model)
    assert [str(one.message) for one in told] == [
        "fuse_layers: stay as they are: own (a OwnNormalization, which has a class of its own), first (axis=1), "
        "renormed (renorm=True), shared (synchronized=True), pooling (data_format=channels_first)"
    ]
    assert ours_in(model) == []


def test_a_subclass_of_our_layer_is_fused_too():
    class Own(layers.BatchNormalization):
        pass

    inputs = np.random.default_rng(0).normal(3, 2, SHAPE).astype(np.float32)
    assert normalised(Own, inputs)[1] >= KERNELS


@pytest.mark.parametrize("given", [None, keras.layers.BatchNormalization(), keras.Sequential([keras.layers.Dense(1)])])
def test_only_built_models_have_layers_to_swap(given):
    with pytest.raises(UsageError, match="fuse_layers: takes a built Keras model, got"):
        trainer.fuse_layers(given)


def test_a_normalisation_of_keras_own_is_unfused_until_it_is_swapped():
    model = subclassed()
    assert layers.has_unfused(model)
    trainer.fuse_layers(model)
    assert not layers.has_unfused(model)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "resnet18" else name for name in MODELS if ":" not in name],
)
@pytest.mark.quick(3)
def test_built_in_models_are_fused(name):
    model = models.build(ModelFlags(model=name), tf.TensorSpec((None, 64, 64, 3), tf.uint8), 10)
    assert not layers.has_unfused(model)
    assert not [layer.name for layer in model._flatten_layers() if type(layer) is keras.layers.MaxPooling2D]


def test_files_are_those_of_keras_layers(tmp_path):
    """Names of variables, a saved model, and weights go both ways; none of them names our package."""
    ours, theirs = (
        keras.Sequential([keras.Input((4, 4, 2)), kind.BatchNormalization(), kind.MaxPooling2D()])
        for kind in (layers, keras.layers)
    )
    assert [layer.name.rstrip("_0123456789") for layer in ours.layers] == ["batch_normalization", "max_pooling2d"]
    images = np.random.default_rng(1).normal(size=(8, 4, 4, 2)).astype(np.float32)
    for model in (ours, theirs):
        model(images, training=True)
    ours.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert [type(layer) for layer in loaded.layers] == [keras.layers.BatchNormalization, keras.layers.MaxPooling2D]
    np.testing.assert_array_equal(loaded(images), ours(images))
    for source, target in ((ours, theirs), (theirs, ours)):
        source.layers[0].gamma.assign_add([1.0, 2.0])
        source.save_weights(tmp_path / "m.weights.h5")
        target.load_weights(tmp_path / "m.weights.h5")
        np.testing.assert_array_equal(target(images), source(images))
        path = tf.train.Checkpoint(model=source).save(tmp_path / "ckpt")
        source_values = source.get_weights()
        target.set_weights([0 * value for value in source_values])
        tf.train.Checkpoint(model=target).restore(path).assert_consumed()
        for one, other in zip(target.get_weights(), source_values, strict=True):
            np.testing.assert_array_equal(one, other)


def unfused(model):
    """Returns a model whose layers compute as Keras' own."""
    for layer in model._flatten_layers():
        for kind in (layers.BatchNormalization, layers.MaxPooling2D):
            if type(layer) is kind:
                object.__setattr__(layer, "__class__", kind.__base__)
    assert ours_in(model) == []
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast_cifar", *(f"resnet{n}" for n in (18, 20, 50))])
def test_built_in_models_train_as_with_keras_layers(name, make_stepper):
    draw = np.random.default_rng(0)
    batch = (draw.normal(size=(8, 16, 16, 3)).astype(np.float32), draw.integers(0, 5, 8), np.float32([1] * 6 + [0] * 2))
    spec = tf.TensorSpec((None, 16, 16, 3), tf.float32)

    def trained(change):
        """Returns the losses of three steps, and all variables after them."""
        stepper = make_stepper(
            *(1, "momentum"),
            rate=0.02,
            shape=(16, 16, 3),
            build=lambda: change(models.build(ModelFlags(model=name), spec, 5)),
        )
        batches = iter(stepper.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(batch).repeat()))
        losses = [float(stepper.run(batches, 1).values[0]) for _ in range(3)]
        return [np.float32(losses), *(variable.numpy() for variable in stepper.state.model.variables)]

    for one, other in zip(trained(lambda model: model), trained(unfused), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * max(1e-3, np.abs(other).max()))


POOLED = ("lenet", "mnist_cnn", "cifar10_cnn", "fast_cifar", "resnet18", "resnet50")


@pytest.mark.parametrize(
    ("name", "times"), [("lenet", 1), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in POOLED)]
)
def test_models_that_pool_train_to_the_same_bits_in_xla_under_op_determinism(name, times, make_stepper, op_determinism):
    side = 64 if name.startswith("resnet") else 16  # smaller images get no pooling in these
    draw = np.random.default_rng(0)
    images, labels = draw.normal(size=(4, side, side, 3)).astype(np.float32), draw.integers(0, 5, 4)
    batch = tf.data.Dataset.from_tensors((images, labels, np.ones(4, np.float32))).repeat()
    found = []
    for _ in range(times):
        stepper = make_stepper(1, "momentum", rate=0.001, shape=images.shape[1:], model=name, jit_compile=True)
        assert layers.MaxPooling2D in ours_in(stepper.state.model)
        result = stepper.run(iter(stepper.strategy.experimental_distribute_dataset(batch)), 3)
        assert (int(result.step), bool(result.finite)) == (3, True)
        found.append([variable.numpy().tobytes() for variable in stepper.state.model.variables])
    assert found[0] == found[-1]


@pytest.mark.parametrize("channels", [3, 64])
def test_local_response_norm_is_that_of_tensorflow(channels):
    images = tf.constant(np.random.default_rng(0).normal(0, 30, (2, 3, 5, channels)), tf.float32)
    found, constants = [], (4, 1.0, 0.001 / 9.0, 0.75)
    for norm in (layers.LocalResponseNorm(), lambda x: tf.nn.local_response_normalization(x, *constants)):
        with tf.GradientTape() as tape:
            tape.watch(images)
            values = norm(images)
            total = tf.reduce_sum(values * values)
        found.append((values.numpy(), tape.gradient(total, images).numpy()))
    assert np.max(np.abs(found[1][0] / images.numpy() - 1)) > 0.05  # it normalises
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
