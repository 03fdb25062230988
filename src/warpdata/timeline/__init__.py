"""The meaning of time, pure: signals as step functions of integer nanoseconds, episodes, views, sampling."""
