# SPDX-License-Identifier: Apache-2.0
"""The text of classes for the main script of a frozen program: a dataset, and the class of its samples."""

MAIN_CLASSES = """
class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return Sample(index).value

class Sample:
    def __init__(self, index):
        self.value = 10 * index
"""
