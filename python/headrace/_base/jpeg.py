# SPDX-License-Identifier: Apache-2.0
"""Texts about a build without libjpeg-turbo, for headrace.images and for headrace doctor."""

NO_JPEG = "this headrace was built without libjpeg-turbo, so Pillow makes all images, with the same pixels at its speed"
GET_JPEG = (
    "Install its headers (Debian and Ubuntu: apt install libjpeg-dev pkg-config; Fedora: dnf install "
    "libjpeg-turbo-devel; conda: libjpeg-turbo), and build headrace again"
)
