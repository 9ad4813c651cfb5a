import importlib
import json

import keras
import pytest
import tensorflow as tf

from trainer import models
from trainer.checkpoint import structure
from trainer.config.model import ModelFlags

L = keras.layers


def chain(*layers):
    return keras.Sequential([keras.Input((4,)), *layers])


def dense(*units):
    return chain(*map(L.Dense, units))


def graph(join):
    images = keras.Input((4,))
    first = L.Dense(4, name="first")(images)
    return keras.Model(images, join([first, L.Dense(4, name="second")(first)]))


class Net(keras.Model):
    """Its arguments are not ones that Keras can serialize."""

    def __init__(self, act, units=4):
        super().__init__()
        self.act, self.inner = act, L.Dense(units)
        self(tf.zeros([1, 2]))

    def call(self, values):
        return self.act(self.inner(values))


def compiled(optimizer="adam", rate=0.1, loss="mse", **options):
    model = chain(L.Dense(4))
    model.compile(keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": rate}}), loss, **options)
    return model


def changes(was, now, **options):
    found = structure.changes(structure.of(was), structure.of(now), **options)
    return [str(one) for one in found if not one.is_harmless], [str(one) for one in found if one.is_harmless]


DENSE = "layer dense: activation was relu, is gelu"


@pytest.mark.parametrize(
    ("was", "now", "refused"),
    [
        (lambda: chain(L.Dense(4, "relu")), lambda: chain(L.Dense(4, "gelu")), DENSE),
        (lambda: dense(4, 4, 4), lambda: dense(4, 4), "layer dense_2 (Dense) is gone"),
        (lambda: dense(4), lambda: chain(L.Dense(4), L.ReLU()), "layer re_lu (ReLU) is new"),
        (lambda: dense(4), lambda: dense(5), "layer dense: units was 4, is 5"),
        (
            lambda: graph(lambda x: x[0] + x[1]),
            lambda: graph(lambda x: x[1] + x[1]),
            "layer add: its inputs was first, second, is second",
        ),
        (
            lambda: graph(lambda x: x[0] * 2),
            lambda: graph(lambda x: x[0] * 3),
            "layer multiply: its inputs was (first, 2)",
        ),
        (
            lambda: chain(L.Lambda(lambda x: x + 1)),
            lambda: chain(L.Lambda(lambda x: x + 2)),
            "layer lambda: function was",
        ),
        (
            lambda: chain(chain(L.Dense(4, "relu"))),
            lambda: chain(dense(4)),
            "layer sequential/dense: activation was relu",
        ),
        (lambda: Net(tf.nn.relu), lambda: Net(tf.nn.gelu), "the model's act was relu, is gelu"),
        (lambda: Net(tf.nn.relu, 3), lambda: Net(tf.nn.relu), "layer dense: units was 3, is 4"),
        (compiled, lambda: compiled("sgd"), "the model's optimizer was Adam, is SGD"),
    ],
)
def test_what_makes_another_model_is_named_with_both_values(was, now, refused):
    found, _ = changes(was(), now())
    assert found
    assert found[0].startswith(refused)


@pytest.mark.parametrize(
    ("was", "now", "harmless"),
    [
        (lambda: chain(L.Dropout(0.1)), lambda: chain(L.Dropout(0.2, seed=3)), "layer dropout: rate was 0.1, is 0.2"),
        (
            lambda: dense(4),
            lambda: chain(L.Dropout(0.2), L.Dense(4)),
            "layers that only take part in training was none",
        ),
        (
            lambda: chain(L.Dense(4), L.Dropout(0.1), L.Dense(4)),
            lambda: chain(L.Dropout(0.1), L.Dense(4), L.Dense(4)),
            "layer dropout: its inputs was dense, is ",
        ),
        (lambda: dense(4), lambda: chain(L.Dense(4, name="head")), "the name of a layer was dense, is head"),
        (
            lambda: dense(4),
            lambda: chain(L.Dense(4, kernel_regularizer="l2")),
            "layer dense: kernel_regularizer was uns",
        ),
        (compiled, lambda: compiled(rate=0.2), "the model's optimizer: learning_rate was 0.1, is 0.2"),
        (compiled, lambda: compiled(loss="mae"), "the model's loss was mse, is mae"),
        (
            compiled,
            lambda: compiled(loss_weights=0.5),
            "the model's loss was mse, is loss=mse, loss_weights=0.5",
        ),
    ],
)
def test_what_changes_the_training_alone_is_harmless(was, now, harmless):
    refused, found = changes(was(), now())
    assert (refused, found[0].startswith(harmless)) == ([], True)


@pytest.mark.parametrize("name", [pytest.param("resnet20", marks=pytest.mark.slow), "fast_cifar", "cifar10_cnn"])
def test_a_model_built_again_is_the_same_whatever_keras_has_numbered(name):
    flags, images = ModelFlags(model=name), tf.TensorSpec([None, 32, 32, 3], "uint8")
    first, again = (models.build(flags, images, 10) for _ in range(2))
    assert [layer.name for layer in first.layers] != [layer.name for layer in again.layers]
    assert structure.of(first) == structure.of(again)
    assert structure.of(first)["layers"][2]["name"] == "conv2d"


def test_code_of_ones_own_that_has_changed_is_announced_and_its_comments_are_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def models_of(name, body):
        source = "import keras\n"
        for kind, base in (("Own", "keras.layers.Layer"), ("Whole", "keras.Model")):
            source += (
                f"class {kind}({base}):\n    'Of {name}.'\n    def call(self, x):  # {name}\n        return {body}\n"
            )
        (tmp_path / f"{name}.py").write_text(source)
        module = importlib.import_module(name)
        return chain(module.Own()), module.Whole()

    was, same, now = models_of("its_code", "x"), models_of("same_code", "x"), models_of("other_code", "-x")
    for number, what in enumerate(("layer own: the code of Own", "the code of Whole")):
        assert changes(was[number], same[number]) == ([], [])
        assert changes(was[number], now[number]) == ([], [f"{what} was another, is this one"])


def test_the_same_code_in_another_file_is_the_same_lambda(tmp_path):
    source = "import keras\nmodel = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: 2 * x)])\n"
    scopes = [{}, {}]
    for number, scope in enumerate(scopes):
        exec(compile("\n" * number + source, tmp_path / f"{number}.py", "exec"), scope)
    first, second = (structure.of(scope["model"]) for scope in scopes)
    assert first == second


def test_code_of_another_python_and_arguments_of_another_keras_are_not_compared():
    now = structure.of(chain(L.Lambda(lambda x: x + 1), L.Dense(4)))
    was = json.loads(json.dumps(now).replace('"python": "', '"python": "9'))
    was["layers"][1]["config"]["function"]["code"] = "another"
    was["layers"][2]["config"]["of_another_keras"] = True
    assert [one.what for one in structure.changes(was, now)] == ["layer dense: of_another_keras"]
    assert structure.changes({**was, "keras": "3.0"}, now) == []


def test_the_policy_of_a_changed_precision_is_no_news():
    policies = ("float32", "mixed_bfloat16")
    was, now = (chain(L.Dense(4, dtype=policy)) for policy in policies)
    assert changes(was, now, precisions=policies) == ([], [])
    assert changes(was, now) == (["layer dense: dtype was float32, is mixed_bfloat16"], [])


def test_the_type_of_the_images_is_that_of_the_input_not_of_the_model():
    stored, fed = (keras.Sequential([keras.Input((4,), dtype=dtype), L.Dense(4)]) for dtype in ("uint8", "float32"))
    assert changes(stored, fed) == ([], [])


def test_only_some_of_many_changes_are_named():
    was, now = (structure.of(chain(*(L.Dense(4, kind) for _ in range(7)))) for kind in ("relu", "gelu"))
    text = structure.in_words(structure.changes(was, now))
    assert text.endswith("layer dense_4: activation was relu, is gelu; and 2 more")
