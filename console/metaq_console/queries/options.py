"""The options of a read with Spark that name the cluster of a profile."""

from __future__ import annotations

from typing import Final

from metaq.client.metaq import ZOOKEEPER_SCHEME
from metaq.client.profile import ROCKETMQ_SCHEME, Profile

_FILES: Final = {"ca_file": "tlsCaFile", "cert_file": "tlsCertFile", "key_file": "tlsKeyFile"}
_ACCOUNT: Final = {
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "security_token": "securityToken",
    "namespace": "namespace",
}


def read_options(profile: Profile) -> dict[str, str]:
    """Return the options with which a query would read from the profile's cluster."""
    names = dict(_FILES)
    if profile.cluster.startswith(ROCKETMQ_SCHEME):
        options = {"nameServers": profile.cluster.removeprefix(ROCKETMQ_SCHEME).replace(",", ";")}
        names |= _ACCOUNT
    elif profile.cluster.startswith(ZOOKEEPER_SCHEME):
        options = {"zookeeper": profile.cluster.removeprefix(ZOOKEEPER_SCHEME)}
    else:
        options = {"brokers": profile.cluster}
    for key, name in names.items():
        value = getattr(profile, key)
        if value is not None:
            options[name] = value
    return options
