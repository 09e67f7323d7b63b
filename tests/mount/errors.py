"""The errors that `weightfs diff --values` reports, computed by NumPy."""

import json
import subprocess

import numpy as np

EXACT = ("elements", "elements_different", "not_finite", "not_finite_different", "nan", "infinite")


def errors(a, b):
    """The errors of the values of `b`, as those of `a` are the right ones. Sums have 64 bits of precision or more."""
    a, b = (np.asarray(side, dtype=np.longdouble).ravel() for side in (a, b))
    nan, infinite = [np.isnan(side) for side in (a, b)], [np.isinf(side) for side in (a, b)]
    finite = np.isfinite(a) & np.isfinite(b)
    differ = (a != b) & ~(nan[0] & nan[1])
    x, y = a[finite], b[finite]
    apart = y - x
    with np.errstate(all="ignore"):
        relative = np.sqrt((apart**2).sum() / (x**2).sum()) if apart.any() else 0.0
        cosine = (x * y).sum() / np.sqrt((x**2).sum()) / np.sqrt((y**2).sum())
    return {
        "elements": a.size,
        "elements_different": int(differ.sum()),
        "max_abs": float(np.abs(apart).max(initial=0)),
        "rms": float(np.sqrt((apart**2).mean())) if apart.size else 0.0,
        "relative_rms": float(relative),
        "cosine": float(cosine),
        "not_finite": int((~finite).sum()),
        "not_finite_different": int((differ & ~finite).sum()),
        "nan": {"a": int(nan[0].sum()), "b": int(nan[1].sum())},
        "infinite": {"a": int(infinite[0].sum()), "b": int(infinite[1].sum())},
    }


def is_close(found, expected):
    """Whether numbers are the same but for rounding. JSON has neither infinity nor NaN; null stands for them."""
    if found is None or not np.isfinite(expected):
        return found is None and not np.isfinite(expected)
    return abs(found - expected) <= 1e-12 * max(abs(expected), 1e-300)


def check(found, a, b, context):
    expected = errors(a, b)
    wrong = [key for key in expected if key in EXACT and found[key] != expected[key]]
    wrong += [key for key in expected if key not in EXACT and not is_close(found[key], expected[key])]
    assert not wrong, (context, wrong, found, expected)


def diff(weightfs, a, b, **options):
    """The exit status, and the report."""
    done = subprocess.run([weightfs, "diff", "--values", "--json", a, b], capture_output=True, text=True, **options)
    assert done.returncode in (0, 1) and not done.stderr, done
    report = json.loads(done.stdout)
    assert report["same"] == (done.returncode == 0), done
    return done.returncode, report
