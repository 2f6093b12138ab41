#!/bin/sh
# Makes the certificates of this directory anew: two of the gateway's, one client's, one stranger's.
set -eu
cd "$(dirname "$0")"
leaf() { # name, subject, alternative name, CA
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -subj "/CN=$2" -out "$1.csr"
  printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\n' "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$4.crt" -CAkey "$4.key" -days 36500 -extfile "$1.ext" -out "$1.crt"
  rm "$1.csr" "$1.ext"
}
ca() { # name
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=test $1" \
    -keyout "$1.key" -out "$1.crt"
}
ca ca
ca other
leaf one "gateway one" DNS:gateway.test ca
leaf two "gateway two" DNS:gateway.test ca
leaf client "client" DNS:client.test ca
leaf stranger "stranger" DNS:stranger.test other
rm ca.key other.key other.crt
