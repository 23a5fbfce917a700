// Command node is kubelet, kube-proxy or CoreDNS, depending on the name by which it is started. They
// share most packages, so that one file is half as large as three.
//
// CoreDNS has the plugins of the cluster's Corefile alone. The release imports every plugin, and with
// them the SDKs of three clouds.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		// It would accept the flags that CoreDNS adds, --version among them.
		flag.CommandLine = flag.NewFlagSet(name, flag.ExitOnError)
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "coredns":
		coremain.Run()
	default:
		fmt.Fprintf(os.Stderr, "%s is not a program of a node\n", name)
		os.Exit(2)
	}
}
