# SPDX-License-Identifier: Apache-2.0
"""headrace's own options: the table with a row for each, their checks, and the settings of one loader.

This room needs no extension, because headrace.torch also checks the options if the engine cannot run.
"""

from __future__ import annotations

from headrace._options.checks import AUTO as AUTO
from headrace._options.checks import check_budget as check_budget
from headrace._options.checks import check_count as check_count
from headrace._options.checks import check_number as check_number
from headrace._options.checks import check_record as check_record
from headrace._options.checks import check_repair as check_repair
from headrace._options.checks import check_seed as check_seed
from headrace._options.checks import check_steps_per_epoch as check_steps_per_epoch
from headrace._options.checks import is_iterable_only as is_iterable_only
from headrace._options.checks import is_torchs_loader as is_torchs_loader
from headrace._options.documents import documented as documented
from headrace._options.documents import shown_with as shown_with
from headrace._options.settings import Settings as Settings
from headrace._options.settings import check_installed as check_installed
from headrace._options.settings import check_own as check_own
from headrace._options.settings import explained_as_attributes as explained_as_attributes
from headrace._options.settings import is_for_install as is_for_install
from headrace._options.settings import is_given as is_given
from headrace._options.settings import own_of as own_of
from headrace._options.settings import own_values as own_values
from headrace._options.settings import with_folder as with_folder
from headrace._options.table import DEFAULTS as DEFAULTS
from headrace._options.table import TABLE as TABLE
from headrace._options.table import Option as Option
from headrace._options.table import Options as Options
