"""An application: its name, its store's address, its secrets."""

import pytest

import outlast
from outlast import App, ConfigurationError, Secret
from outlast.kernel.redact import sanitise


def test_the_store_is_the_argument_then_the_environment_then_sqlite(monkeypatch):
    """C-28: no service is needed to begin with."""
    monkeypatch.delenv("OUTLAST_STORE", raising=False)
    assert App().store_url == "sqlite:///.outlast/outlast.db"
    monkeypatch.setenv("OUTLAST_STORE", "postgresql://db/shop")
    assert App("shop").store_url == "postgresql://db/shop"
    assert App("shop", store="sqlite:///other.db").store_url == "sqlite:///other.db"


def test_a_secret_is_found_when_it_is_needed(monkeypatch):
    """U-24: named in code, read from the environment, shown nowhere."""
    secret = Secret.env("SHOP_TOKEN")
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    with pytest.raises(
        ConfigurationError, match="expected the environment variable SHOP_TOKEN to be set, got: nothing"
    ):
        secret.reveal()
    monkeypatch.setenv("SHOP_TOKEN", "")
    with pytest.raises(ConfigurationError, match="got: an empty text"):
        secret.reveal()
    monkeypatch.setenv("SHOP_TOKEN", "correct horse")
    assert secret.reveal() == "correct horse"
    assert repr(secret) == "Secret.env('SHOP_TOKEN') = ***"
    assert sanitise("login with correct horse failed") == "login with *** failed"


def test_every_mistake_is_reported():
    """And what was given for a secret is not repeated (S0-29, S0-41)."""
    with pytest.raises(ConfigurationError) as caught:
        App("", secrets=["hunter2-hunter2"], stroe="x")
    assert len(caught.value.problems) == 3
    assert "Did you mean 'store'?" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="environment variable"):
        Secret.env("")


def test_an_application_hides_its_store():
    """U-24: the address may hold a password."""
    assert repr(App("shop", store="postgresql://u:p@db/shop")) == "<App 'shop'>"
    assert outlast.App is App
