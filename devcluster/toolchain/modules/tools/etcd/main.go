// Command etcd is etcd with smaller files: the release allocates two of 64 MB for its log.
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
