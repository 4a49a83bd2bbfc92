"""An ASGI application: answers with the SHA-256 of the body; /endless never ends."""
import hashlib


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    total = hashlib.sha256()
    more = True
    while more:
        event = await receive()
        total.update(event.get("body", b""))
        more = event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    while scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
    await send({"type": "http.response.body", "body": total.hexdigest().encode()})
