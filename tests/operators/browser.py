"""Control of JupyterLab in Debian's Chromium."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.platforms import unavailable

TIMEOUT_SECONDS = 90.0


@dataclass
class Browser:
    """JupyterLab in Chromium."""

    driver: webdriver.Chrome
    url: str
    token: str

    def find(self, selector: str) -> WebElement:
        return WebDriverWait(self.driver, TIMEOUT_SECONDS).until(
            lambda driver: driver.find_element(By.CSS_SELECTOR, selector)
        )

    def has(self, text: str, selector: str) -> bool:
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return any(text in (each.get_attribute("textContent") or "") for each in found)

    def click(self, selector: str) -> None:
        def clicked(driver: webdriver.Chrome) -> bool:
            driver.find_element(By.CSS_SELECTOR, selector).click()
            return True

        WebDriverWait(self.driver, TIMEOUT_SECONDS, ignored_exceptions=[Exception]).until(clicked)

    def log_in(self, path: str = "/lab") -> None:
        self.driver.get(f"{self.url}{path}")
        self.find("#password_input").send_keys(self.token, Keys.ENTER)
        self.find("#jp-main-dock-panel")

    def type(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def run(self, code: str) -> None:
        """Run code in a new last cell. Omit closing brackets, because the editor adds them."""
        self.click(".jp-Notebook .jp-Cell:last-of-type .cm-content")
        self.type(code)
        chain = ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER)
        chain.key_up(Keys.SHIFT).perform()

    def save(self) -> None:
        chain = ActionChains(self.driver).key_down(Keys.CONTROL).send_keys("s")
        chain.key_up(Keys.CONTROL).perform()


@contextmanager
def chromium(profile: Path, url: str, token: str) -> Iterator[Browser]:
    """Yield a browser without cookies."""
    program, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or chromedriver is None:
        unavailable("Debian's packages chromium and chromium-driver are missing")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={profile}")
    driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    try:
        yield Browser(driver, url, token)
    finally:
        driver.quit()


def wait(condition: Callable[[], Any], what: str, log: Callable[[], str] = str) -> None:
    """Wait for a condition; on a timeout, fail with the end of the log."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, (
            f"not within {TIMEOUT_SECONDS:.0f} s: {what}\n{log()[-2000:]}"
        )
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Return whether a server responds without an error."""
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
