"""The last run of several data directories, whose files `broker.run` may differ."""

from tidelog.broker.last_run import LastRun, common_run

OLD = LastRun("old", 5, "boot", is_synced=True, has_ended=True)
NEW = LastRun("new", 8, "boot", is_synced=True, has_ended=True)


def test_directories_of_one_run_have_this_run() -> None:
    assert common_run([NEW]) == NEW
    assert common_run([NEW, NEW]) == NEW
    assert common_run([]) == LastRun()


def test_the_mark_counts_only_if_it_is_in_all_directories() -> None:
    unmarked = NEW._replace(is_synced=False)
    assert common_run([NEW, unmarked]) == common_run([unmarked, NEW]) == unmarked
    assert not common_run([NEW, OLD._replace(is_synced=False)]).is_synced


def test_a_start_that_has_written_some_of_the_directories_hides_neither_the_epoch_nor_the_mark() -> None:
    """But nothing says that the newer run has ended: another machine may use a copy of its directory."""
    expected = LastRun(broker_epoch=5, is_synced=True)
    assert common_run([OLD, NEW]) == common_run([NEW, OLD]) == expected


def test_a_directory_without_the_file_has_no_epoch() -> None:
    assert common_run([NEW, LastRun()]) == common_run([LastRun(), NEW]) == LastRun()
