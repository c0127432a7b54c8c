"""Settings that have to be made before the libraries that read them are imported."""

from __future__ import annotations

import os

# Two busy processes on two cores are four times slower where idle OpenMP threads spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Triton 3.9 warns on every compilation where this is unset, and warnings are errors here.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The machines that run the tests are slow and shared: how long an example takes says nothing.
_SLOW = (HealthCheck.too_slow,)
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", deadline=None, suppress_health_check=_SLOW, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
