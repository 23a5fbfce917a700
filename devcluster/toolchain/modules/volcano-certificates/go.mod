module gpu-platform.dev/toolchain/volcano-certificates

go 1.26.0
