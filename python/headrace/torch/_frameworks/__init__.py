# SPDX-License-Identifier: Apache-2.0
"""Changes for frameworks that rebuild loaders or wrap samplers: accelerate and Lightning."""
