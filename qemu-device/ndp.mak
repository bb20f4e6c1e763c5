# SPDX-License-Identifier: GPL-2.0-or-later
#
# The devices of the QEMU that this project builds: a Q35 machine whose DIMMs
# hang on PCIe root ports, NVMe as the yardstick of the benches, virtio to
# bring files and disks into a guest.
CONFIG_Q35=y
CONFIG_PCIE_PORT=y
CONFIG_NDP_DIMM=y
CONFIG_ISA_DEBUG=y
CONFIG_NVME_PCI=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_NET=y
CONFIG_VIRTIO_9P=y
CONFIG_VIRTIO_RNG=y
