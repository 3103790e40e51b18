"""Requests of ioctl() that a thread may wait in, by number -> what their header calls them."""

from __future__ import annotations

# Header below include/uapi/linux/ (of "asm" its own, asm-generic/ioctls.h; of "sound" sound/asound.h) -> its requests.
REQUESTS: dict[str, dict[str, int]] = {
    "fs.h": {
        "BLKRRPART": 0x125F,
        "BLKFLSBUF": 0x1261,
        "BLKDISCARD": 0x1277,
        "BLKSECDISCARD": 0x127D,
        "BLKZEROOUT": 0x127F,
        "FICLONE": 0x40049409,
        "FICLONERANGE": 0x4020940D,
        "FIDEDUPERANGE": 0xC0189436,
        "FIFREEZE": 0xC0045877,
        "FITHAW": 0xC0045878,
        "FITRIM": 0xC0185879,
    },
    "loop.h": {
        "LOOP_SET_FD": 0x4C00,
        "LOOP_CLR_FD": 0x4C01,
        "LOOP_SET_STATUS": 0x4C02,
        "LOOP_GET_STATUS": 0x4C03,
        "LOOP_SET_STATUS64": 0x4C04,
        "LOOP_GET_STATUS64": 0x4C05,
        "LOOP_CHANGE_FD": 0x4C06,
        "LOOP_SET_CAPACITY": 0x4C07,
        "LOOP_SET_DIRECT_IO": 0x4C08,
        "LOOP_SET_BLOCK_SIZE": 0x4C09,
        "LOOP_CONFIGURE": 0x4C0A,
    },
    "asm": {
        "TCSETSW": 0x5403,
        "TCSETSF": 0x5404,
        "TCSBRK": 0x5409,
        "TCFLSH": 0x540B,
        "TIOCSETD": 0x5423,
        "TIOCMIWAIT": 0x545C,
    },
    "dm-ioctl.h": {"DM_DEV_SUSPEND": 0xC138FD06, "DM_DEV_WAIT": 0xC138FD08},
    "i2c-dev.h": {"I2C_RDWR": 0x0707},
    "kfd_ioctl.h": {"AMDKFD_IOC_WAIT_EVENTS": 0xC0184B0C},
    "kvm.h": {"KVM_RUN": 0xAE80},
    "nvme_ioctl.h": {"NVME_IOCTL_ADMIN_CMD": 0xC0484E41, "NVME_IOCTL_IO_CMD": 0xC0484E43},
    "sound": {
        "SNDRV_PCM_IOCTL_DRAIN": 0x4144,
        "SNDRV_PCM_IOCTL_WRITEI_FRAMES": 0x40184150,
        "SNDRV_PCM_IOCTL_READI_FRAMES": 0x80184151,
    },
    "usbdevice_fs.h": {"USBDEVFS_CONTROL": 0xC0185500, "USBDEVFS_BULK": 0xC0185502, "USBDEVFS_REAPURB": 0x4008550C},
    "userfaultfd.h": {"UFFDIO_COPY": 0xC028AA03, "UFFDIO_ZEROPAGE": 0xC020AA04},
    "videodev2.h": {"VIDIOC_DQBUF": 0xC0585611},
}
_NAMES = {number: name for names in REQUESTS.values() for name, number in names.items()}


def request_text(request: int) -> str:
    """`BLKFLSBUF`, or `ioctl 0x1261` of one that is not known."""
    return _NAMES.get(request, f"ioctl {request:#x}")
