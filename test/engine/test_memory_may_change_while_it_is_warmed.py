"""A segment that another thread removes between two steps of a warm-up costs no error."""

import threading

from planning_cases import open_planning


def test_a_removed_segment_ends_no_warm_up(tmp_path):
    with open_planning(tmp_path, reuse_method='auto', group_stable_steps=1) as planning:
        planning.upsert(*((f'thing {i}', 'object', f'thing {i}: on the table') for i in range(9)))
        units = planning.memory.units

        def units_before_a_removal():
            found = units()
            other = threading.Thread(target=planning.remove, args=('thing 7',))
            other.start()
            other.join()
            planning.memory.units = units
            return found

        planning.memory.units = units_before_a_removal
        planning.warm()
        assert all('thing 7' not in unit.ids for unit in planning.memory.units())
