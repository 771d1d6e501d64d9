"""The `nodewarden` command line: mounts each part's commands and turns refusals into exit codes.

Exit codes: 0 accepted or done, 1 rejected or denied, 2 malformed input or usage, 3 temporarily unavailable.
Each part is imported only when one of its commands is called, so that an image with one part's packages works.
"""
