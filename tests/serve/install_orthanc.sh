#!/usr/bin/env bash
# Install Debian's Orthanc and its DICOMweb plugin, for the tests that need them, and keep the packaged service stopped:
# the tests start an Orthanc of their own on this machine's loopback.
set -euo pipefail
if command -v Orthanc >/dev/null && ls /usr/share/orthanc/plugins/*DicomWeb* >/dev/null 2>&1; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Orthanc is not installed, and only root can install it: apt-get install orthanc orthanc-dicomweb" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq orthanc orthanc-dicomweb
if command -v systemctl >/dev/null && systemctl is-active --quiet orthanc; then
  systemctl disable --now orthanc
fi
