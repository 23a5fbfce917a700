// Command kubectl is the command line client of Kubernetes. It is not part of `control-plane`, because
// initializing the packages of the API server would double the CPU time of every call.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) // klog is used before flags are parsed
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
