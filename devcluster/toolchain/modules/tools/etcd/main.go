// Command etcd is etcd with smaller log files: the release preallocates two files of 64 MB.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

func main() {
	wal.SegmentSizeBytes = 8_000_000
	etcdmain.Main(os.Args)
}
