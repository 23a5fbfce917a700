"""A cache for scikit-learn's digits, on which most tests train.

Reading the digits takes longer than training on them for a few steps.
"""

from functools import cache

import sklearn.datasets

# `training.data.builtin.digits` copies the arrays.
sklearn.datasets.load_digits = cache(sklearn.datasets.load_digits)
sklearn.datasets.load_digits()
