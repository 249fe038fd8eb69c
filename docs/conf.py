"""How Sphinx builds the documentation; `tox run -e docs` does it with every warning an error."""

import django_workqueue

project = "django-workqueue"
author = "the django-workqueue authors"
copyright = f"2026, {author}"  # noqa: A001 - the name is Sphinx's
release = django_workqueue.__version__
version = release

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"django-workqueue {release}"
