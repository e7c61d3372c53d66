"""The demo: the suite and the simulated robot, with tasks, observed and judged from outside.

- demo: one run and its processes. monitor, memory_client, mission_client: its ROS clients.
- director: tasks and questions. score: truth of the language. recording: data for the film.
- screen, report, summary: figures. picture, storyboard, video: pictures.

Modules without ROS are here too, because only the demo uses them.
"""
