# Makes a node of the builder container: what kind's own Dockerfile does after copying its files.
set -eu

mkdir -p /opt/cni/bin /etc/cni/net.d /etc/kubernetes/manifests /kind/manifests /kind/images
cp /usr/lib/cni/* /opt/cni/bin/
mkdir -p /usr/local/sbin && ln -sf /usr/sbin/runc /usr/local/sbin/runc
ln -sf /lib/systemd/systemd /sbin/init

# A node boots only what it needs: no consoles, no devices, no file systems of a real machine.
find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
      /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/basic.target.wants/* \
      /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl*
echo "ReadKMsg=no" >> /etc/systemd/journald.conf
systemctl enable kubelet.service containerd.service undo-mount-hacks.service
systemctl mask systemd-binfmt.service

sed -i \
  -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
  -e "s#sandbox_image = .*#sandbox_image = \"$PAUSE_IMAGE\"#" \
  /etc/containerd/config.toml
grep -q "sandbox_image = \"$PAUSE_IMAGE\"" /etc/containerd/config.toml
grep -q 'restrict_oom_score_adj = true' /etc/containerd/config.toml

ctr oci spec |
  jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
  > /etc/containerd/cri-base.json

printf %s "$KUBERNETES_VERSION" > /kind/version
cat > /kind/manifests/default-storage.yaml <<'YAML'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
provisioner: kubernetes.io/no-provisioner
YAML
