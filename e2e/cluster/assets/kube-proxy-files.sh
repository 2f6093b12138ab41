# Prints a tar of kube-proxy with the programs it calls and their libraries, taken from the node's Debian.
set -eu
root=$(mktemp -d)

copy() { mkdir -p "$root$(dirname "$1")" && cp -L "$1" "$root$1"; }
copy_with_libraries() {
  copy "$1"
  ldd "$1" | grep -oE '/[^ ]+\.so[^ ]*' | while read -r library; do copy "$library"; done
}

for program in xtables-nft-multi nft ipset conntrack; do copy_with_libraries "/usr/sbin/$program"; done
for extension in /usr/lib/*-linux-gnu/xtables/*.so; do copy_with_libraries "$extension"; done
for name in iptables ip6tables; do
  for suffix in "" -save -restore; do ln -s xtables-nft-multi "$root/usr/sbin/$name$suffix"; done
done
for table in protocols services ethertypes; do if [ -e "/etc/$table" ]; then copy "/etc/$table"; fi; done

mkdir -p "$root/tmp" "$root/run" "$root/usr/local/bin"
cp /built/kube-proxy "$root/usr/local/bin/kube-proxy"
tar -C "$root" --numeric-owner -c .
