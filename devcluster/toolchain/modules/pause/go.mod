module gpu-platform.dev/toolchain/pause

go 1.26
