// Command kwok is kwokctl if it is started by that name, else kwok, which kwokctl starts by a name of
// its choice. They share most packages, so that one file is half as large as two.
//
// Of kwokctl's runtimes it has the one that starts plain processes.
package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwokctl "sigs.k8s.io/kwok/pkg/kwokctl/cmd"
	_ "sigs.k8s.io/kwok/pkg/kwokctl/runtime/binary"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

func main() {
	newCommand := kwok.NewCommand
	if filepath.Base(os.Args[0]) == "kwokctl" {
		newCommand = kwokctl.NewCommand
	}
	// Both read their configuration files before they have commands.
	global := pflag.NewFlagSet("global", pflag.ContinueOnError)
	global.ParseErrorsAllowlist.UnknownFlags = true
	global.Usage = func() {}
	ctx, logger := log.InitFlags(signals.SetupSignalContext(), global)
	ctx, err := config.InitFlags(ctx, global)
	if err == nil {
		command := newCommand(ctx)
		command.PersistentFlags().AddFlagSet(global)
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		logger.Error("exit", "err", err)
		os.Exit(1)
	}
}
