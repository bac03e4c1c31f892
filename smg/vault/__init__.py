"""Encryption of what a model keeps of patients: the user's key, the model's data key, and sealed files.

    key.py           the user's key: from a file, an environment variable or a passphrase
    wrapped_keys.py  how model.json describes the encryption: the data key, wrapped by the user's key
    vault.py         a model's data keys once they are unwrapped; makes, opens and rewraps them
    sealed.py        the format of an encrypted file
    keyring.py       which key is at hand: given on the call, in the environment, or asked for

The package `cryptography` is imported where it is needed, so that a model without encryption does not need it.
"""
