"""Missions: how often words are brought about, by who plans, remembers and acts."""
