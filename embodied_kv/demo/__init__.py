"""The demo: the suite and the simulated robot, given tasks, watched and judged from outside.

- demo: one run; children: its processes; monitor, recall: what it hears and asks over ROS.
- director: tasks and questions; score: whether what the robot says is true; recording: what was.
- screen, report, summary: figures; picture, storyboard, video: pictures.

What does not know ROS stands here too, as nothing but the demo uses it.
"""
