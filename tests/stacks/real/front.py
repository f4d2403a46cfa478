"""What the servers of this folder share of HTTP: answers in JSON, and a server that many clients may call at once."""
import http.server
import json


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *words):
        pass

    def asked(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")

    def say(self, status, what):
        data = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def say_models(self, owner):
        """To GET: who the server is; nothing on other paths."""
        models = {"data": [{"id": "model", "owned_by": owner, "max_model_len": 1200}]}
        self.say(200, models if self.path == "/v1/models" else {})


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, address):
        pass


def serve(handler):
    """Prints the address and serves for ever."""
    server = Server(("127.0.0.1", 0), handler)
    print("http://127.0.0.1:%d" % server.server_port, flush=True)
    server.serve_forever()
