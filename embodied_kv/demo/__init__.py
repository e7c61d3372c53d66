"""The demo: ROS clients give tasks to the suite and the simulated robot, and judge the results.

- demo: one run and its processes. monitor, memory_client, mission_client: its ROS clients.
- director: tasks and questions. score: correctness of texts. recording: data for the film.
- screen, report, summary: figures. picture, storyboard, video: pictures.

Modules without ROS are here too, because only the demo uses them.
"""
