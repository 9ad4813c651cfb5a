"""The default hyperparameters of each pair of a model and an optimizer, with their sources."""

from __future__ import annotations

from typing import Any

# Defaults of the built-in models, each with the optimizer that it names, or momentum, where they differ from the flags'
# own. A user's model has those of the flags: momentum 0.9 at a rate of 0.01, which "typically works for standard
# multi-layer neural networks" (Bengio 2012, "Practical recommendations for gradient-based training", 3.1).
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    # "MNIST for ML beginners" (mnist_softmax.py): batch 100, a rate of 0.5.
    "softmax_regression": {"optimizer": "sgd", "learning_rate": 0.5, "schedule": "constant"},
    # 784-500-10 of the MNIST chapter of "TensorFlow: a practical Google deep-learning framework" (Zheng, Gu): batch
    # 100, decay 0.99 per epoch, an average of the weights of decay 0.99. Its plain gradient at a rate of 0.8 takes
    # MNIST to 98.2% in 8 epochs, but our 1,429 digits only to 14%; momentum at 0.05 takes both to their usual accuracy
    # (98.2%, 96.5%).
    "mlp": {"learning_rate": 0.05, "ema": 0.99},
    # LeNet-5 (LeCun et al. 1998), trained with momentum as is usual today.
    "lenet": {"learning_rate": 0.01, "decay_factor": 0.98},
    # The MNIST tutorial's convolutional.py: batch 64, momentum 0.9, a rate of 0.01 times 0.95 every epoch, 10 epochs.
    "mnist_cnn": {"global_batch_size": 64, "learning_rate": 0.01, "decay_factor": 0.95},
    # The CIFAR-10 tutorial's cifar10.py: batch 128, rate 0.1 times 0.1 every 350 epochs, distorted 24x24 crops, an
    # average of the weights for evaluation.
    "cifar10_cnn": {
        "global_batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "decay_factor": 0.1,
        "decay_epochs": 350.0,
        "distort": "cifar10_tutorial",
        "ema": 0.9999,
    },
    # After airbench94 (Jordan 2024): Nesterov, decoupled decay, label smoothing, a rate that rises and falls, mirrored
    # images in evaluations; cutout as in its longer recipe.
    "fast_cifar": {
        "global_batch_size": 128,
        "optimizer": "nesterov",
        "learning_rate": 0.125,
        "schedule": "linear",
        "warmup_epochs": 2.0,
        "weight_decay": 0.01,
        "label_smoothing": 0.2,
        "eval_flip": True,
        "distort": "pad_crop_flip(pad=4) | cutout(size=8)",
    },
    # ResNet-20 (He et al. 2016, 4.2): batch 128, momentum 0.9, crops of padded images and flips, 64,000 steps (182
    # epochs), the rate divided by 10 after 32,000 and 48,000.
    "resnet20": {
        "global_batch_size": 128,
        "learning_rate": 0.1,
        "schedule": "piecewise",
        "decay_factor": 0.1,
        "decay_at": "91,136.5",
        "distort": "pad_crop_flip",
    },
    # ResNet-18, trained as is usual on CIFAR-10 today: a cosine over 200 epochs (Loshchilov, Hutter 2017).
    "resnet18": {
        "global_batch_size": 128,
        "optimizer": "nesterov",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "distort": "pad_crop_flip",
    },
    # ResNet-50, trained as in "Bag of tricks" (He et al. 2019): batch 256, Nesterov at a rate of 0.1 (2.1), weights of
    # convolutions alone decayed and 5 epochs of warm-up (3.1), a cosine over 120 epochs (5.1), label smoothing of 0.1
    # (5.2), random crops. Not its jitter of colours and its noise.
    "resnet50": {
        "global_batch_size": 256,
        "optimizer": "nesterov",
        "learning_rate": 0.1,
        "schedule": "cosine",
        "warmup_epochs": 5.0,
        "label_smoothing": 0.1,
        "distort": "random_resized_crop",
    },
}
WITH_DROPOUT = ("resnet20",)  # take --dropout
DEFAULT_EPOCHS = {  # without --train_steps and --epochs
    **{"softmax_regression": 10, "mlp": 20, "lenet": 10, "mnist_cnn": 10},
    **{"cifar10_cnn": 100, "fast_cifar": 20, "resnet20": 182, "resnet18": 200, "resnet50": 120},
}
OWN_EPOCHS = 20  # of a user's model or task

# Defaults of an optimizer that replaces the model's own; the schedule stays the model's. In 150 steps on the digits
# lenet reaches 0.92 to 0.97 with all of them but two (mlp: 0.94 to 0.97): ftrl starts with all weights at 0, so that it
# only works for models of one layer; adafactor as of Keras 3.15 gives NaN if a filter has no gradient.
_MOMENTUM = ("momentum", "nesterov")
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adadelta": {"learning_rate": 1.0},  # Zeiler 2012, whose method has no rate
    "adafactor": {"learning_rate": 0.01},  # Shazeer and Stern 2018: the largest relative step
    "adagrad": {"learning_rate": 0.01},  # that of PyTorch; Duchi et al. 2011 name none
    "adam": {"learning_rate": 0.001},  # Kingma and Ba 2015, algorithm 1
    "adamax": {"learning_rate": 0.002},  # Kingma and Ba 2015, algorithm 2
    "adamw": {"learning_rate": 0.001, "weight_decay": 0.004},  # that of Keras; Loshchilov and Hutter 2019
    "ftrl": {"learning_rate": 0.1},  # McMahan et al. 2013 tune it by the data
    "lamb": {"learning_rate": 0.01},  # on the digits, lenet reaches 0.82 with Keras' 0.001, and 0.97 with this
    "lion": {"learning_rate": 0.0003},  # Chen et al. 2023: 3 to 10 times smaller than adamw's
    "muon": {"learning_rate": 0.001, "weight_decay": 0.004},  # that of Keras, which scales updates as large as adamw's
    "nadam": {"learning_rate": 0.001},  # that of Keras; Dozat 2016
    "rmsprop": {"learning_rate": 0.001},  # Hinton 2012, lecture 6e
    "sgd": {"learning_rate": 0.1},  # that of the CIFAR-10 tutorial (cifar10.py)
}


def defaults_of(model: str | None, optimizer: str | None = None) -> dict[str, Any]:
    """Returns {flag: default} of a pair of model and optimizer, for flags that have another default there.

    Args:
      model: a name in MODEL_DEFAULTS; anything else, or None, is a user's model.
      optimizer: as in --optimizer, with or without arguments; None: the model's own.
    """
    of_model = MODEL_DEFAULTS.get(model or "", {})
    own = of_model.get("optimizer", "momentum")
    name = own if optimizer is None else optimizer.partition("(")[0].strip()
    if name == own:
        return of_model
    if name in _MOMENTUM and own in _MOMENTUM:
        return {**of_model, "optimizer": name}
    if name in _MOMENTUM:
        # With momentum 0.9, gradients that agree move weights 1 / (1 - 0.9) times as far (Sutskever et al. 2013).
        return {**of_model, "optimizer": name, "learning_rate": round(0.1 * of_model["learning_rate"], 6)}
    return {**of_model, "optimizer": name, **OPTIMIZER_DEFAULTS.get(name, {})}
