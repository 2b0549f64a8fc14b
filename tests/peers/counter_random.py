"""runtime/base/counter_random.h in numpy: values are a pure function of (key, counter), so that a script and a C++
test draw the same weights and inputs, and neither has to store them."""

import numpy as np

MASK = (1 << 64) - 1


def _mix64(value):
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def random_bits(key, counters):
    """64 uniform bits for each counter."""
    with np.errstate(over="ignore"):
        counters = np.atleast_1d(np.asarray(counters, dtype=np.uint64))
        salt = np.uint64((key * 0xD1342543DE82EF95 + 1) & MASK)
        return _mix64(_mix64(counters + np.uint64(0x9E3779B97F4A7C15)) + salt)


def random_normal(key, count):
    """Standard normal values of counters 0 … count-1, in fp64."""
    bits = random_bits(key, np.arange(count))
    radius = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)


def hash_name(name):
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for letter in name.encode():
        value = ((value ^ letter) * 0x100000001B3) & MASK
    return value


def initial_weight(seed, name, shape, stddev, value):
    """As runtime/trainer/train/initialize.cpp: fp32, normal with that deviation, or `value` everywhere when it is 0."""
    count = int(np.prod(shape))
    if stddev == 0.0:
        return np.full(shape, value, dtype=np.float32)
    key = int(random_bits(seed, [hash_name(name)])[0])
    return (stddev * random_normal(key, count)).astype(np.float32).reshape(shape)
