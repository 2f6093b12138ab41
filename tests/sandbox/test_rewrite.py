import pytest
from moe_operator.sandbox.rewrite import Rewriter, expand

MOUNTS = {
    "/weights": "/state/nodes/h20-0/var/store",
    "/weights/views": "/elsewhere/views",
    "/dev/termination-log": "/state/pods/p/termination-log",
    "/var/run/secrets/kubernetes.io/serviceaccount": "/state/pods/p/token",
    "/tmp": "/tmp/state/pods/p/tmp",
}
NAMES = {
    ("g-0", "g", "default"): "127.60.0.9",
    ("gateway", "default"): "127.60.0.7",
}
REWRITER = Rewriter("127.60.0.5", MOUNTS, NAMES.get)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        # mount paths
        ("/weights", "/state/nodes/h20-0/var/store"),
        ("/weights/blobs/x", "/state/nodes/h20-0/var/store/blobs/x"),
        ("/weights/views/abc", "/elsewhere/views/abc"),
        ("--model=/weights/blobs", "--model=/state/nodes/h20-0/var/store/blobs"),
        ("file:///weights/path", "file:///state/nodes/h20-0/var/store/path"),
        ('{"path":"/weights"}', '{"path":"/state/nodes/h20-0/var/store"}'),
        ("/bin:/weights:/x", "/bin:/state/nodes/h20-0/var/store:/x"),
        ("/dev/termination-log", "/state/pods/p/termination-log"),
        ("/weightsX", "/weightsX"),
        ("/weights.old", "/weights.old"),
        ("/data/weights", "/data/weights"),
        ("https://host/weights/x", "https://host/weights/x"),
        ("./weights", "./weights"),
        # what a replacement brought in is not replaced again
        ("/tmp/file", "/tmp/state/pods/p/tmp/file"),
        # hosts of the pod itself
        ("0.0.0.0", "127.60.0.5"),
        ("--listen=0.0.0.0:9108", "--listen=127.60.0.5:9108"),
        ("http://localhost:8000/v1", "http://127.60.0.5:8000/v1"),
        ("127.0.0.1", "127.60.0.5"),
        ("tcp://user@127.0.0.1/", "tcp://user@127.60.0.5/"),
        ("127.0.0.10", "127.0.0.10"),
        ("10.0.0.0", "10.0.0.0"),
        ("1127.0.0.1", "1127.0.0.1"),
        ("localhost.example.com", "localhost.example.com"),
        ("my-localhost", "my-localhost"),
        ("localhostess", "localhostess"),
        # names of the cluster
        ("g-0.g.default.svc", "127.60.0.9"),
        ("g-0.g.default.svc.cluster.local:29501", "127.60.0.9:29501"),
        ("http://gateway.default.svc/v1", "http://127.60.0.7/v1"),
        ("http://gateway.default.svc.cluster.local.:80/", "http://127.60.0.7:80/"),
        ("unknown.default.svc", "unknown.default.svc"),
        ("gateway.default.svc.example.com", "gateway.default.svc.example.com"),
        ("a.b.c.d.svc", "a.b.c.d.svc"),
    ],
)
def test_text_becomes_what_this_machine_must_see(text: str, seen: str) -> None:
    assert REWRITER.text(text) == seen


def test_without_mounts_only_hosts_change() -> None:
    assert Rewriter("127.60.0.5").argv(["/weights", "0.0.0.0"]) == ["/weights", "127.60.0.5"]


@pytest.mark.parametrize(
    ("container_path", "here"),
    [
        ("/weights", "/state/nodes/h20-0/var/store"),
        ("/weights/a", "/state/nodes/h20-0/var/store/a"),
        ("/weights/views/a", "/elsewhere/views/a"),
        ("/other", None),
        ("/weightsX", None),
    ],
)
def test_a_path_lies_in_the_deepest_mount(container_path: str, here: str | None) -> None:
    assert REWRITER.path(container_path) == here


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A}", "$A ${A}"),
        ("$(ls -l)", "$(ls -l)"),
        ("$(A", "$(A"),
        ("cost $$5", "cost $5"),
    ],
)
def test_variables_expand_as_a_kubelet_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded
