# SPDX-License-Identifier: Apache-2.0
"""The C reference, made from the comments of headers."""

import pytest

HEADER = """/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADRACE_CUP_H
#define HEADRACE_CUP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Cups: what water is in. They come from <headrace/cup.h>.
 *
 *     fill -> pour
 */

typedef struct hr_cup hr_cup; /* one cup */

/* ---- pouring ---- */

struct hr_water {
    uint32_t grams; /* of water */

    uint32_t degrees;
};

/* Fills a cup; `*ret_cup` is owned by the caller, *ret_grams not
 * changed. */
HR_API int hr_cup_fill(hr_cup **ret_cup);
HR_API int hr_cup_pour(hr_cup *cup);

#ifdef __cplusplus
}
#endif
#endif
"""

PAGE = """# headrace/cup.h

`#include <headrace/cup.h>`

Cups: what water is in. They come from &lt;headrace/cup.h>.

    fill -> pour

```c
typedef struct hr_cup hr_cup; /* one cup */
```

## Pouring

```c
struct hr_water {
    uint32_t grams; /* of water */

    uint32_t degrees;
};
```

Fills a cup; `*ret_cup` is owned by the caller, \\*ret_grams not
changed.

```c
HR_API int hr_cup_fill(hr_cup **ret_cup);
HR_API int hr_cup_pour(hr_cup *cup);
```
"""


def test_page_has_the_comments_and_declarations_of_its_header(run_tool, write_files):
    folder = write_files({"headrace/cup.h": HEADER, "headrace/face/own.h": "HR_API int hr_own(void);\n"})
    assert run_tool("c_reference.py", folder, folder / "pages").returncode == 0
    assert (folder / "pages/cup.md").read_text() == PAGE
    assert "| [cup.h](cup.md) | Cups: what water is in. |" in (folder / "pages/README.md").read_text()
    assert not (folder / "pages/own.md").exists()


@pytest.mark.parametrize(
    "bare",
    [
        "HR_API int hr_bare(void);",
        "/* About another one. */\n\nHR_API int hr_bare(void);",
        "enum hr_bare { HR_BARE };",
        "#define HR_BARE 1",
    ],
)
def test_declaration_without_a_comment_is_named(run_tool, write_files, bare):
    folder = write_files({"headrace/cup.h": HEADER.replace("/* ---- pouring", f"{bare}\n\n/* ---- pouring")})
    result = run_tool("c_reference.py", folder, folder / "pages")
    assert result.returncode == 1
    assert result.stdout == f"cup.h: no comment: {bare.splitlines()[-1]}\n"
