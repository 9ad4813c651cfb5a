"""The hyperparameters that each model starts from, with their sources."""

from __future__ import annotations

from typing import Any

# Where they differ from the defaults of the flags.
MODEL_DEFAULTS: dict[str, dict[str, Any]] = {
    # "MNIST for ML beginners" (mnist_softmax.py): batch 100, a rate of 0.5.
    "softmax_regression": {"optimizer": "sgd", "learning_rate": 0.5, "schedule": "constant"},
    # 784-500-10 of the MNIST chapter of "TensorFlow: a practical Google deep-learning framework" (Zheng, Gu): batch
    # 100, decay 0.99 per epoch. Its plain gradient at a rate of 0.8 takes MNIST to 98.2% in 8 epochs, but our 1,429
    # digits to 14% only; momentum at 0.05 takes both to their usual accuracy (98.2%, 96.5%).
    "mlp": {},
    # LeNet-5 (LeCun et al. 1998), trained with momentum as is usual today.
    "lenet": {"learning_rate": 0.01, "decay_factor": 0.98},
    # The MNIST tutorial's convolutional.py: batch 64, momentum 0.9, a rate of 0.01 times 0.95 every epoch, 10 epochs.
    "mnist_cnn": {"global_batch_size": 64, "learning_rate": 0.01, "decay_factor": 0.95},
    # The CIFAR-10 tutorial's cifar10.py: batch 128, rate 0.1 times 0.1 every 350 epochs, distorted 24x24 crops.
    "cifar10_cnn": {
        "global_batch_size": 128,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "decay_factor": 0.1,
        "decay_epochs": 350.0,
        "distort": "cifar10_tutorial",
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
}
WITH_DROPOUT = ("resnet20",)  # take --dropout
DEFAULT_EPOCHS = {  # without --train_steps and --epochs
    **{"softmax_regression": 10, "mlp": 20, "lenet": 10, "mnist_cnn": 10},
    **{"cifar10_cnn": 100, "fast_cifar": 20, "resnet20": 182, "resnet18": 200},
}
