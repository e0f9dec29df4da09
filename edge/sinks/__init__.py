"""Sinks: stdout, a command, a relay (gpio), an MQTT broker, a web server (webhook). docs/guide/sinks.md shows the messages."""
