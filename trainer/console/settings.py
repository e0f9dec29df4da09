"""Pages of settings: language, own password, another browser, the users, and the trail of changes."""

from starlette.responses import Response

from edge.errors import UsageError
from trainer.console.call import Call, Page
from trainer.console.text import COOKIE, languages
from trainer.site import trail, users
from trainer.site.users import ROLES

PAGE_ROWS = 100
YEAR_SECONDS = 365 * 86400


def show(call: Call) -> Response:
    return call.render("settings.html", has_password=call.sessions.needs_login(), link="")


def set_language(call: Call) -> Response:
    chosen = call.value("language")
    if chosen not in languages():
        raise UsageError("This language is not known.")
    response = call.redirect("/settings")
    response.set_cookie(COOKIE, chosen, max_age=YEAR_SECONDS, httponly=True, samesite="strict", secure=call.sessions.https)
    return response


def new_link(call: Call) -> Response:
    """A one-time link for another browser of this computer."""
    if call.sessions.needs_login():
        raise UsageError("This console has users.", "Log in with a name and a password in the other browser.")
    link = f"{call.request.url.scheme}://{call.request.headers['host']}/token?token={call.sessions.new_token()}"
    return call.render("settings.html", has_password=False, link=link)


def set_own_password(call: Call) -> Response:
    if users.verify(call.database, call.session.user, call.value("old")) is None:
        raise UsageError(call.text("settings.old_wrong"))
    users.set_password(call.database, call.session.user, _new_password(call), who=call.session.user)
    return call.redirect("/login", call.text("settings.password_changed"))


def show_users(call: Call) -> Response:
    return call.render("users.html", users=users.all_users(call.database), roles=ROLES)


def add_user(call: Call) -> Response:
    is_first = not users.exist(call.database)
    name = call.value("name").strip()
    users.add(call.database, name, call.value("role"), _new_password(call), who=call.session.user)
    return call.redirect("/login" if is_first else "/users", call.text("users.added", name=name))


def set_role(call: Call) -> Response:
    name, role = call.request.path_params["name"], call.value("role")
    users.set_role(call.database, name, role, who=call.session.user)
    return call.redirect("/users", call.text("users.role_changed", name=name))


def set_password(call: Call) -> Response:
    name = call.request.path_params["name"]
    users.set_password(call.database, name, _new_password(call), who=call.session.user)
    return call.redirect("/users", call.text("users.password_changed", name=name))


def remove_user(call: Call) -> Response:
    name = call.request.path_params["name"]
    users.remove(call.database, name, who=call.session.user)
    return call.redirect("/users", call.text("users.removed", name=name))


def _new_password(call: Call) -> str:
    if call.value("password") != call.value("again"):
        raise UsageError(call.text("settings.not_the_same"))
    return call.value("password")


def show_trail(call: Call) -> Response:
    search, before = call.query("q")[:100], call.number("before", -1)
    last = None if before < 0 else before
    actions = call.text.said_with(search)
    found = trail.changes(call.database, search=search, actions=actions, before=last, most=PAGE_ROWS + 1)
    older = found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None
    return call.render("trail.html", changes=found[:PAGE_ROWS], search=search, older=older, is_first=last is None)


PAGES = (
    Page("/settings", show),
    Page("/settings/language", set_language, method="POST"),
    Page("/settings/link", new_link, method="POST"),
    Page("/settings/password", set_own_password, method="POST"),
    Page("/users", show_users, "administrator"),
    Page("/users/add", add_user, "administrator", "POST"),
    Page("/users/{name}/role", set_role, "administrator", "POST"),
    Page("/users/{name}/password", set_password, "administrator", "POST"),
    Page("/users/{name}/remove", remove_user, "administrator", "POST"),
    Page("/trail", show_trail, "administrator"),
)
