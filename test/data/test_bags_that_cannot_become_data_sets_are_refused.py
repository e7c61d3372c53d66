"""An incomplete bag is refused in one line with the topic, the time and the remedy."""

import random
import re

import pytest
from foreign_bag_cases import BEGIN, ForeignBag, contract, exported, new
from test_bags_of_other_recorders_become_data_sets import GOALS, chunk

from embodied_kv.data import bag_reader, export
from embodied_kv.data.bag_options import BagError, BagOptions, Mark, mark_of_text, read_marks
from embodied_kv.data.bag_reader import Bag
from embodied_kv.data.recording_reader import Recording, RecordingError
from embodied_kv.robots.reading import to_text


def refused(root, folder, **options):
    """Return the one line with which an export is refused; nothing is written."""
    with pytest.raises(BagError) as error:
        exported(root, folder, **options)
    assert not (folder / 'out').exists() and '\n' not in str(error.value)
    return str(error.value)


def without(bag, topic):
    bag.waiting = [entry for entry in bag.waiting if entry[1] != topic]
    return bag


@pytest.mark.parametrize(
    ('topic', 'why'),
    [
        ('/front/image_raw', 'observations.observation.images.front'),
        ('/joint_states', 'the state'),
        ('/arm/joint_trajectory', 'the action'),
    ],
)
def test_missing_topic_is_named_with_its_purpose(tmp_path, topic, why):
    root = without(ForeignBag(tmp_path / 'bag').lives(2.0), topic).write()
    line = refused(root, tmp_path)
    assert line.startswith(f'{topic} of {root} must have messages for {why} (got none; there are')
    assert 'record the topic, correct it in the contract, or pass --namespace' in line


def test_topics_of_the_same_type_are_suggested(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0, topic='/head/image_raw')
    assert 'there are /head/image_raw);' in refused(bag.write(), tmp_path)


def test_topic_of_another_type_is_refused(tmp_path):
    bag = without(ForeignBag(tmp_path / 'bag').lives(2.0), '/joint_states')
    bag.tell(0.0, 'hello', '/joint_states')
    line = refused(bag.write(), tmp_path)
    assert 'must be sensor_msgs/msg/JointState for the state (got std_msgs/msg/String)' in line


def test_type_without_definition_is_refused(tmp_path, monkeypatch):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    bag.put('/action_chunk', 0.0, chunk(0.0))
    monkeypatch.setattr(bag_reader, '_definition', only_standard(bag_reader._definition))
    line = refused(bag.write(), tmp_path)
    assert line.startswith('definition of embodied_kv/msg/ActionChunk must be in')
    assert 'ros2 bag convert to MCAP where the package of the message is sourced' in line


def only_standard(definition):
    """Return a reader of definitions as for a bag without definitions."""

    def read(connection):
        none = connection.msgdef._replace(format=bag_reader.MessageDefinitionFormat.NONE)
        return definition(connection._replace(msgdef=none))

    return read


def test_bag_without_a_task_is_refused(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(2.0).write()
    assert '(got no topic /instruction); pass --task TEXT' in refused(root, tmp_path, task='')


def test_goals_of_an_action_are_refused_with_the_alternatives(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(2.0).write()
    line = refused(root, tmp_path, of=contract(action=GOALS))
    assert 'arm/follow of control_msgs/action/FollowJointTrajectory' in line
    assert 'pass --actions measured' in line


# ---------------------------------------------------------------------- messages


def test_joint_that_no_message_contains_is_named(tmp_path):
    bag = without(ForeignBag(tmp_path / 'bag').lives(2.0), '/joint_states')
    for i in range(100):
        bag.feel(i / 50, names=['turn', 'elevate'])
    line = refused(bag.write(), tmp_path)
    assert line.startswith('position.lift must be in a message of /joint_states')
    assert '(got turn, elevate)' in line


def test_command_without_a_joint_is_refused_with_its_time(tmp_path):
    bag = without(ForeignBag(tmp_path / 'bag').lives(2.0), '/arm/joint_trajectory')
    bag.command(1.25, names=['turn', 'elevate'])
    line = refused(bag.write(), tmp_path)
    assert 'joint_names of /arm/joint_trajectory at 1.25 s of' in line
    assert 'must contain lift (got turn, elevate)' in line


@pytest.mark.parametrize('jump', [-3600.0, 12.0])
def test_clock_that_jumps_is_refused_with_topic_and_time(tmp_path, jump):
    bag = without(ForeignBag(tmp_path / 'bag').lives(3.0), '/joint_states')
    for i in range(150):
        bag.feel(i / 50, stamp=i / 50 + (jump if i >= 100 else 0.0))
    line = refused(bag.write(), tmp_path)
    assert line.startswith('stamp of /joint_states at 2.00 s of')
    assert f'(got {jump:+.1f} s)' in line and '--stamps receive' in line


def test_damaged_message_is_refused_with_topic_and_time(tmp_path, monkeypatch):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    root = bag.write()
    whole = Bag._opened

    def opened(self):
        reader = whole(self)
        messages = reader.messages

        def cut(*arguments):
            for connection, stamp, data in messages(*arguments):
                is_cut = connection.topic == '/joint_states' and stamp == BEGIN + 10**9
                yield connection, stamp, data[:30] if is_cut else data

        reader.messages = cut
        return reader

    monkeypatch.setattr(Bag, '_opened', opened)
    line = refused(root, tmp_path)
    assert line.startswith('message of /joint_states at 1.00 s of') and '(got 30 bytes' in line


def test_field_of_another_kind_is_refused_with_topic_and_time(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    bag.put('/episode', 1.0, new('std_msgs/msg/Header'))
    line = refused(bag.write(), tmp_path, episode_topic='/episode')
    assert line.startswith('message of /episode at 1.00 s of') and 'data' in line


# ---------------------------------------------------------------------- episodes


def test_listed_episode_without_frames_is_refused(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(3.0).write()
    marks = (Mark(0.0, 2.0, line='l, line 2'), Mark(7.0, 9.0, line='l, line 3'))
    line = refused(root, tmp_path, marks=marks)
    assert line.startswith('episode from 7.00 to 9.00 s of') and 'l, line 3' in line


def test_episode_of_a_topic_without_a_camera_is_refused_but_a_short_one_skipped(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0).lives(2.0, begin=4.0)
    for at, value in ((0.0, True), (0.3, False), (0.5, True), (1.9, False)):
        bag.mark(at, value)
    kept = list(bag.waiting)
    done, _ = exported(bag.write(), tmp_path, episode_topic='/episode')
    assert done.episodes == 1 and done.skipped['of an episode shorter than 1 s'] == 3
    other = ForeignBag(tmp_path / 'other')
    other.waiting = kept
    for at, value in ((2.2, True), (3.9, False)):
        other.mark(at, value)
    line = refused(other.write(), tmp_path / 'again', episode_topic='/episode')
    assert line.startswith('episode from 2.20 to 3.90 s of') and '/episode' in line


def test_bag_without_an_episode_is_refused_with_the_reasons(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(0.5).write()
    with pytest.raises(RecordingError, match='has no episode of 1 s; skipped: 6 of an episode sh'):
        exported(root, tmp_path)


@pytest.mark.parametrize(
    ('text', 'line'),
    [
        ('begin,end\n0,1\n', r'names of its columns, start,end .*\(got begin, end\)'),
        ('', r'names of its columns, start,end .*\(got nothing\)'),
        ('start,end\n', r'must list an episode \(got none\)'),
        ('start,end\n0,one\n', r"line 2: start and end must be numbers .*\(got '0' and 'one'\)"),
        ('start,end\n3,2\n', r'line 2: start must be >= 0 and < end \(got 3 and 2 s\)'),
        ('start,end\n3,5\n0,4\n', r'line 2: start must be >= 4 s.*\(got 3 s\)'),
        ('start,end\n0,nan\n', r'line 2: start must be >= 0 and < end'),
    ],
)
def test_list_of_episodes_that_is_invalid_is_refused(tmp_path, text, line):
    path = tmp_path / 'episodes.csv'
    path.write_text(text)
    with pytest.raises(BagError, match=line):
        read_marks(path)


def test_list_of_episodes_is_read(tmp_path):
    path = tmp_path / 'episodes.csv'
    path.write_text('start, end, task\n1, 2.5, "pick, then place"\n2.5, 4,\n')
    marks = read_marks(path)
    assert [(m.start, m.end, m.task) for m in marks] == [
        (1, 2.5, 'pick, then place'),
        (2.5, 4, ''),
    ]
    assert mark_of_text('0.5:2:stack: red') == Mark(
        0.5, 2.0, 'stack: red', '', "episode '0.5:2:stack: red'"
    )


@pytest.mark.parametrize(
    ('bag', 'line'), [('', 'must name one of the 2 bags'), ('c', r'must be one of a, b \(got c\)')]
)
def test_listed_episode_of_an_unknown_bag_is_refused(tmp_path, bag, line):
    options = BagOptions(marks=(Mark(0.0, 1.0, '', bag, 'line 2'),))
    with pytest.raises(BagError, match=line):
        options.check_bags([tmp_path / 'a', tmp_path / 'b'])


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize('storage', ['sqlite3', 'mcap'])
def test_damaged_files_give_one_line(tmp_path, storage):
    """A truncated or changed file gives a data set, or one line that names the file."""
    root = ForeignBag(tmp_path / 'bag', storage).lives(1.2).write()
    files = sorted(root.iterdir())
    whole = {file: file.read_bytes() for file in files}
    dice, lines = random.Random(0), set()
    for attempt in range(24):
        file = files[attempt % len(files)]
        data = bytearray(whole[file])
        if attempt % 4 == 0:
            del data[dice.randrange(len(data)) :]
        else:
            for _ in range(20):
                data[dice.randrange(len(data))] = dice.randrange(256)
        file.write_bytes(data)
        try:
            with_reader(root)
        except RecordingError as error:
            assert '\n' not in str(error) and str(root) in str(error)
            lines.add(re.sub(r'\d+', '', str(error)))
        file.write_bytes(whole[file])
    assert len(lines) > 2
    assert with_reader(root) > 50


def with_reader(root):
    """Read all messages of a bag and return their number."""
    bag = Bag(root, contract(), BagOptions(task='reach'))
    try:
        return len([message.read() for message in bag.messages()])
    finally:
        bag.close()


@pytest.mark.parametrize('name', ['notes.txt', 'bag.mcap', 'bag.db3'])
def test_file_of_another_kind_gives_one_line(tmp_path, name):
    path = tmp_path / name
    path.write_text('no bag\n')
    assert str(path) in refused(path, tmp_path)


def test_folder_without_metadata_is_refused_with_the_command(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(0.2).write()
    (root / 'metadata.yaml').unlink()
    assert 'write it with ros2 bag reindex' in refused(root, tmp_path)


def test_bag_without_a_contract_is_refused_with_the_option(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(0.2).write()
    for path in (root, *root.glob('*.mcap')):
        with pytest.raises(RecordingError, match='pass --contract FILE to read a bag of another'):
            Recording(path)


def test_command_exports_bags_and_refuses_their_options_without_a_contract(
    tmp_path, monkeypatch, capsys
):
    root = ForeignBag(tmp_path / 'bag').lives(2.0).write()
    (tmp_path / 'pair.yaml').write_text(to_text(contract()))
    options = [str(root), str(tmp_path / 'out'), '--episode', '0:1.5:reach']

    def run(*more):
        monkeypatch.setattr('sys.argv', ['export', *options, *more])
        export.main()

    with pytest.raises(SystemExit, match='1'):
        run()
    assert '--contract must be given' in capsys.readouterr().err
    run('--contract', str(tmp_path / 'pair.yaml'))
    assert '1 episodes, 15 frames' in capsys.readouterr().out
