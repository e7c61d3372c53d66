from embodied_kv.train.judge.trainer import main

if __name__ == '__main__':
    main()
