"""embodied_kv: a robot acts and speaks from one KV cache."""

from pkgutil import extend_path

# The generated msg and srv packages are installed in another folder under the same name.
__path__ = extend_path(__path__, __name__)
