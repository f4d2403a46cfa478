#!/usr/bin/env python3
"""Derives the polynomial coefficients of src/num/expf.h. Needs mpmath and numpy.

Each fit minimises max w(f) |P(f) - T(f)| on a Chebyshev grid (C. L. Lawson, 1961), with T evaluated in 60 digits.
Coefficients are then rounded to binary32 one by one from the lowest, the higher ones fitted again after each. The exp2
polynomial, whose own rounding is much of the error of ls_exp2_bounded, is then searched over neighbours in the last
places for the smallest error of the binary32 evaluation itself.
"""
import mpmath
import numpy as np

mpmath.mp.dps = 60


def minimax(x, target, weight, powers):
    """Coefficients of the given powers of x that minimise max weight |P - target| on the grid, by Lawson's iteration:
    least squares, each point's weight multiplied by its error, again."""
    a = x[:, None] ** np.array(powers) * weight[:, None]
    b = target * weight
    scale = np.max(np.abs(a), axis=0)
    share = np.full(len(x), 1.0 / len(x))
    best, best_err = None, np.inf
    for _ in range(400):
        root = np.sqrt(share)
        coeff = np.linalg.lstsq(a / scale * root[:, None], b * root, rcond=None)[0] / scale
        err = np.abs(a @ coeff - b)
        if np.max(err) < best_err:
            best, best_err = coeff, np.max(err)
        share = share * err
        share /= np.sum(share)
    return best, best_err


def rounded_fit(x, target, weight, powers):
    """The same with binary32 coefficients: round the lowest, fit the rest again."""
    fixed, left = [], target
    for j, power in enumerate(powers):
        coeff, _ = minimax(x, left, weight, powers[j:])
        fixed.append(float(np.float32(coeff[0])))
        left = left - fixed[-1] * x**power
    return fixed, np.max(weight * np.abs(left))


def grid(low, high, points=1500):
    x = (low + high) / 2 - (high - low) / 2 * np.cos(np.pi * (np.arange(points) + 0.5) / points)
    return x


def exact(x, function):
    return np.array([float(function(mpmath.mpf(float(v)))) for v in x])


def search_exp2(start):
    """Smallest max |p(f) / 2^f - 1| of the binary32 Horner chain, near `start` (c1..c5)."""
    rng = np.random.default_rng(1)
    f = np.concatenate([np.linspace(-0.5, 0.5, 20001), rng.uniform(-0.5, 0.5, 20000)]).astype(np.float32)
    f64 = f.astype(np.float64)
    true = np.exp2(f64)

    def worst(coeff):
        p = np.full_like(f, np.float32(coeff[-1]))
        for c in list(coeff[-2::-1]) + [1.0]:
            p = (p.astype(np.float64) * f64 + np.float64(np.float32(c))).astype(np.float32)
        return np.max(np.abs(p / true - 1))

    def moved(coeff, steps):
        out = []
        for c, s in zip(coeff, steps):
            out.append(float(np.int32(np.float32(c).view(np.int32) + s).view(np.float32)))
        return out

    best, best_err = list(start), worst(start)
    for _ in range(4000):
        reach = rng.uniform() ** 3
        widths = (1 + reach * np.array([2, 20, 200, 2000, 20000])).astype(int)
        trial = moved(best, [int(rng.integers(-w, w + 1)) for w in widths])
        err = worst(trial)
        if err < best_err:
            best, best_err = trial, err
    return best, best_err


def show(name, coeff, note):
    print(f"{name}: {note}")
    for c in coeff:
        print(f"    {c.hex()}f")


def main():
    mp = mpmath
    x = grid(-0.5, 0.5)
    true = np.exp2(x)
    c, err = rounded_fit(x, exact(x, lambda f: mp.expm1(f * mp.log(2))), 1 / true, range(1, 6))
    show("exp2, c1..c5, as fitted", c, f"relative error {err:.3e}")
    c, err = search_exp2(c)
    show("exp2, c1..c5", c, f"relative error of the binary32 chain {err:.4e}")

    x = grid(-0.34667, 0.34667)
    c, err = rounded_fit(x, exact(x, lambda f: mp.expm1(f) - f), 1 / np.exp(x), range(2, 7))
    show("exp, c2..c6", c, f"relative error {err:.3e}")

    x = grid(-1 / 3, 1 / 3)
    c, err = rounded_fit(x, exact(x, lambda f: mp.log1p(f) - f + f * f / 2), 1 / np.abs(np.log1p(x)), range(3, 11))
    show("log, c3..c10", c, f"relative error {err:.3e}")

    ln2, log2e = mp.log(2), 1 / mp.log(2)
    high = float(np.float32(float(ln2)))
    show("LS_LOG2E", [float(np.float32(float(log2e)))], "nearest binary32")
    show("LS_LN2_HI, LS_LN2_LO", [high, float(np.float32(float(ln2 - mp.mpf(high))))], "ln 2 as a sum of two binary32")


if __name__ == "__main__":
    main()
