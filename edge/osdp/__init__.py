"""OSDP: the terminal as a reader (peripheral device) of a door controller, over RS-485 with Secure Channel.

settings -> numbers (which credential number a person has), port (the serial port), device (libosdp), link (is the controller
there) -> sink. docs/guide/osdp.md explains how to connect it.
"""
