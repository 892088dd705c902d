"""The names that a pipeline's file imports."""

import tidelog.pipelines


def test_every_public_name_is_found_and_is_what_its_module_declares() -> None:
    for name in tidelog.pipelines.__all__:
        value = getattr(tidelog.pipelines, name)
        assert callable(value), name
        assert value.__name__ == name
